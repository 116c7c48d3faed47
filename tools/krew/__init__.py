"""The commands for krew: an archive for each platform that needs no installing, and the manifest that names them."""
