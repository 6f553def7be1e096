"""Guide of the command line: sections of the options, topics of ``paceline help``, scripts that complete words in a shell."""
