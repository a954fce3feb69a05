"""Drawing: the look of every picture, SVG, alternative texts, and how a notebook shows a figure."""
