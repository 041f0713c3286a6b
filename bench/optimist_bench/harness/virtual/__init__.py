"""Scheduler, proposers and worker in virtual time: their cores, without processes or clocks."""
