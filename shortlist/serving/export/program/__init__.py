"""Modules that lie beside a model in Triton's repository and score there, with numpy and ONNX Runtime alone."""
