"""From another commit to this tree and back with faults standing: nothing is lost, and no mark of a Node flickers."""
