"""The rooms where things run: Serve classes, encoder models, graph adapters, the engine."""
