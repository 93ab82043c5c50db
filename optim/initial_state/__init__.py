"""State ahead of the first step, for optimizers that are not ours: `optim.preinitialize`, `optim.state_bytes`."""
