"""Everything that names a library, a server or a file format. Importable from `bootstrap` only."""
