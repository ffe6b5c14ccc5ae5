"""How commands write texts: as everybody does."""

from __future__ import annotations

from everthread.domain.wording import excerpt as excerpt
