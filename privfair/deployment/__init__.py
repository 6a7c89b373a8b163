"""A federation on several machines, whatever carries its messages: data holder, server, and what they agree on."""
