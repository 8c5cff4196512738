"""Networks as ONNX files, for machines without PyTorch."""

from rankcode.export.onnx_file import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
