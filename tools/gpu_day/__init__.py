"""One command that checks and measures the package on a GPU: ``python -m tools.gpu_day --help``.

A part is a module with a function ``steps``, which gives its steps by name.

right      models, maps and numbers on the GPU are those of the CPU
fast       seconds and memory of maps, a student, ``predict``
waits      a student whose host asks later whether logits are finite
depthwise  dilated depthwise convolutions as sums of shifted products
bank       the search for the nearest of 100,000 features
tail       the float32 sums over draws, against float64
runtimes   an exported file in ONNX Runtime and in TensorRT
studies    networks and boards that are too long for a CPU

``steps`` holds what a step is and where its row goes, ``timing`` how it is timed.
"""
