"""Pure decisions over frozen values: no Ray, no torch, no clock, no I/O."""
