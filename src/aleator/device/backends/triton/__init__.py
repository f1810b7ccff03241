"""Device chains and the operator in Triton (docs/device.md, docs/operator.md)."""
