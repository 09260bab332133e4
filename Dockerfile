# An image with segunc and the versions of requirements-default.lock.
#
# The base needs Python 3.11 or newer from its Debian packages: Debian 12 (bookworm), Ubuntu 24.04, or later ones.
# This image has not been built yet.
#     docker build -t segunc .
#     docker build --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 -t segunc .    # any base with Debian packages
#     docker run --rm --gpus all -v "$PWD:/work" segunc predict --model runs/abnn --input drive.mp4 --out maps
ARG BASE=python:3.12-slim
FROM ${BASE}
# g++ compiles the tail once; without it the tail runs in plain torch. On a GPU Triton needs Python.h, of python3-dev.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python3 -m venv /opt/segunc \
    && /opt/segunc/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r /src/requirements-default.lock \
    && /opt/segunc/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation /src
ENV PATH=/opt/segunc/bin:$PATH
WORKDIR /work
ENTRYPOINT ["segunc"]
