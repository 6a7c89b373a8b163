"""The protocol of federated training: messages, rounds, algorithms, optimizers."""
