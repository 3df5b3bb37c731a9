"""How a stream is cut into windows: `tumbling`, `sliding`, `session` and `count`. What `window(...)` is given. Driver."""

from penstock.operators.window.kinds import count_window as count
from penstock.operators.window.kinds import session, sliding, tumbling

__all__ = ["count", "session", "sliding", "tumbling"]
