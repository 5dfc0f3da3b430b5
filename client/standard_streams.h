// Standard input, output and error of a process that may have been started without them.

#pragma once

namespace mk::client {

// Occupies those of the descriptors 0 to 2 that are closed, so that no file or socket that is
// opened later takes their numbers. Reading or writing them fails with EBADF, as it did. Called
// once, first thing.
void OccupyClosedStreams();

}  // namespace mk::client
