"""What tests of a topology, and of Penstock itself, are made of.

`disk` and `faults` disturb a run; `line`, `schedule`, `replay` and `outputs` check from its checkpoint what it
committed; `tamper` forges checkpoints to prove that the checks notice. The engine never imports this package.
"""
