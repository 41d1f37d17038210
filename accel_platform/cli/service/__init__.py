"""Commands that keep running or watch over it: `accel run`, `ui`, `serve`, `status` and `keys`."""
