"""Pictures and tables of schedules: as text, as SVG in a notebook, and on the axes of matplotlib."""
