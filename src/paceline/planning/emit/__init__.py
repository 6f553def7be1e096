"""A strategy as what runs it: options of training frameworks, files of launchers, schedulers and clouds. One file a target."""
