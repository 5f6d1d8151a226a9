"""The embedded default model: MiniCPM-o 4.5's architecture at toy size, written on first use."""
