"""Three applications (DjiNN, Tonic suite) against one pool of processes: labels are right, and queries are counted."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "serve_apps.py"


def test_image_text_and_audio_are_answered_by_one_pool_of_processes() -> None:
    words = [sys.executable, str(SCRIPT), "--seconds", "0.3", "--clients", "2", "--processes", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: [float(each) for each in line.split()[1:]] for line in done.stdout.splitlines()[1:]}
    assert set(rows) == {"image", "text", "audio"}
    for accuracy, queries, *_ in rows.values():
        assert accuracy >= 0.85
        assert queries > 0
