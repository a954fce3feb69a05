"""Pictures that move: settings that Python and a hand can set, HTML for pages, a widget in Jupyter."""
