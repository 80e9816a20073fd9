"""``python -m snefy_ldl`` is the command line ``snefy-ldl``."""

from __future__ import annotations

from snefy_ldl.apps.cli import main

if __name__ == "__main__":
    main()
