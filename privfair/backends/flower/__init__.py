"""The same run on Flower: real data holders, or a trial of them on this machine."""
