"""The bundled story model, from a text file of stories to a `.bin`, in one command."""
