"""How clients are computed: one after the other, or all at once as one batched program."""
