"""Files that run a strategy: options of training frameworks, launchers, schedulers and clouds. One module a target."""
