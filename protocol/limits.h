// Bounds on messages. They are checked on the raw bytes, before anything is allocated by a length
// that a message claims.

#pragma once

#include <cstddef>
#include <cstdint>

namespace mk::protocol {

struct Limits {
  size_t message_bytes = size_t{64} << 20;  // one message, either direction
  size_t depth = 32;                        // maps and arrays inside one another
  size_t map_entries = 4096;                // per map
  size_t array_items = size_t{1} << 20;     // per array: prompts of a million ids
  size_t text_bytes = size_t{16} << 20;     // per string
  size_t binary_bytes = size_t{8} << 20;    // per piece of logits or hidden states
  size_t values = size_t{1} << 21;          // all values of a message together
  size_t key_bytes = 64;                    // per map key
};

inline constexpr Limits kLimits;

// Largest payload of one chunk; larger tensors are cut into pieces.
inline constexpr size_t kMaxPieceBytes = kLimits.binary_bytes;

// A client acknowledges what it has shown at least this often while a request runs, even when
// nothing new came; a daemon that hears nothing for kSilenceMs takes the client for dead.
inline constexpr int kAckIntervalMs = 1000;
inline constexpr int kSilenceMs = 5000;

// Unacknowledged replies that a run may be ahead of its client.
inline constexpr uint32_t kDefaultWindow = 256;
inline constexpr uint32_t kMaxWindow = 4096;

}  // namespace mk::protocol
