"""Runs `model.onnx` of `segunc export --to triton` in the Python backend of Triton's server.

For a server without the backend of ONNX Runtime. Put this file beside `1/model.onnx`, and replace
`platform: "onnxruntime_onnx"` in `config.pbtxt` by `backend: "python"`. The Python of the backend
needs the packages numpy and onnxruntime.
"""

import json
from pathlib import Path

import onnxruntime
import triton_python_backend_utils as triton  # the server's own

THREADS = "intra_op_thread_count"
"""Parameter of `config.pbtxt`, which the backend of ONNX Runtime has, too."""


class TritonPythonModel:
    """An instance of the model: the server calls it for one list of requests after the other."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the file.

        Args:
            args: of the server: the folder of the model, its version, and `config.pbtxt` as JSON.
        """
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        parameters = json.loads(args["model_config"])["parameters"]
        options = onnxruntime.SessionOptions()
        if THREADS in parameters:
            options.intra_op_num_threads = int(parameters[THREADS]["string_value"])
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list) -> list:
        """Return the maps of each request, in the order of the requests."""
        responses = []
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            names = list(request.requested_output_names())
            try:
                maps = self.session.run(names, inputs)
            except Exception as error:  # those of ONNX Runtime have no other common type
                refusal = triton.TritonError(str(error))
                responses.append(triton.InferenceResponse([], refusal))
                continue
            tensors = [
                triton.Tensor(name, values) for name, values in zip(names, maps, strict=True)
            ]
            responses.append(triton.InferenceResponse(tensors))
        return responses
