"""The console: the daemon's page in a browser. Only :mod:`starting` may be imported without the extra ``console``."""
