"""The commands: `manage.py reltask`."""
