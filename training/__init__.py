"""How the embedded default model was trained: `python -m training`. Nothing that serves imports this."""
