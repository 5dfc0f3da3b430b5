// A whole command that works off the records of an input.

#pragma once

#include <string>

#include "client/map_runner.h"

namespace mk::client {

// Connects, runs everything, writes the answers and what there is to say at the end. Returns the
// exit code. `input_bytes`: still to be read; 0: not known.
int RunMap(const MapFlow& flow, MapWork& work, RecordReader& reader, uint64_t input_bytes);

// Bytes that are still to be read of a file; 0: not known.
uint64_t BytesLeft(int fd);

}  // namespace mk::client
