"""The frozen critic: model, calibrator, contract."""
