"""Questions in the words and the files of other tools, turned into options of the command line."""
