// The state of a sequence as named arrays: what a pack holds, and from what a sequence is made
// again that goes on with the same bits.
//
// Which arrays there are, and their shapes, follows from the model and a StateKey alone. Saving
// hands them to a sink one after the other; restoring asks a source for the same ones in the same
// order. Rows are in order of positions, whatever pages, rings and tiles a sequence keeps them in,
// so that equal states give equal bytes.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace mk {

// n: tokens of the sequence. The numbers are those of pack files (docs/packs.md).
enum class StateArray : uint16_t {
  // K3, per KDA layer.
  kKdaConv = 16,    // f32 [3][taps - 1][H D]: last inputs of the convolutions of q, k, v
  kKdaMatrix = 17,  // f32 [H][D][D], key channel by value channel
  // K3, per MLA layer: latent rows, or their bytes in q8, or expanded rows.
  kLatentRows = 18,      // f32 [n][r_kv + rho]
  kExpandedKeys = 20,    // f32 [n][M][nope + rho]
  kExpandedValues = 21,  // f32 [n][M][v]
  kLatentCodes = 22,     // i8 [n][groups of 32][32], -127 to 127
  kLatentScales = 23,    // f32 [n][groups of 32]
  // DSV4, per layer. Rows of rings: as many of the last ones as are kept.
  kWindowRows = 32,        // [rows][D] f32, or [rows][kept bytes] (fp8_rows.h)
  kCompressedRows = 33,    // the same for all compressed rows, n / ratio
  kCompressorInputs = 34,  // f32 [rows][2][c D]: values and scores of tokens
  kIndexInputs = 35,       // f32 [rows][2][2 Di]
  kIndexKeys = 36,         // [n / ratio][Di] f32, or twice the e2m1 values as i8 (fp4_rows.h)
  kIndexKeyScales = 37,    // f32 [n / ratio][Di / 32], beside i8 keys
};
// "kda_matrix".
std::string_view StateArrayName(StateArray array);

enum class StateType : uint8_t { kF32 = 0, kU32 = 1, kI8 = 2, kBytes = 4 };
// "f32", "u32", "i8", "bytes".
std::string_view StateTypeName(StateType type);
size_t StateTypeBytes(StateType type);

struct StateSection {
  StateArray array = StateArray::kKdaConv;
  uint16_t layer = 0;  // of the model
  StateType type = StateType::kF32;
  std::array<uint32_t, 3> dims = {1, 1, 1};

  size_t elements() const { return size_t{dims[0]} * dims[1] * dims[2]; }
  size_t bytes() const { return elements() * StateTypeBytes(type); }
  bool operator==(const StateSection&) const = default;
};
// "latent_rows of layer 3".
std::string SectionName(const StateSection& section);

// What the arrays of a state follow from.
struct StateKey {
  SequenceOptions options;  // max_tokens does not matter here
  size_t length = 0;        // tokens
  size_t rewindable = 0;    // as Sequence::rewindable() when no draft is open
};

// Gets sections in order; the bytes are valid during the call.
using StateSink = std::function<Status(const StateSection&, std::span<const std::byte>)>;
// Fills in the bytes of a section, section.bytes() of them.
using StateSource = std::function<Status(const StateSection&, std::span<std::byte>)>;

// A piece of memory that the state of a sequence lies in. As long as any sequence holds it, no
// other one has its address, and sequences of which one is a copy of the other have some in common.
struct StatePage {
  const void* address = nullptr;
  size_t bytes = 0;
};

// What models offer beside running, if they keep states of this kind. Thread safety as Model: the
// keeper is immutable, a sequence belongs to one thread at a time.
class StateKeeper {
 public:
  // Bytes of Sequence::state_bytes() that no other sequence shares at this moment. The sequence is
  // this model's.
  virtual size_t OwnBytes(const Sequence& sequence) const = 0;
  // All pieces of memory of Sequence::state_bytes(), each once. None for a sequence that is not
  // this model's.
  virtual std::vector<StatePage> Pages(const Sequence& sequence) const = 0;

  // What the arrays of a sequence's state follow from. kInvalidArgument for a sequence that is not
  // this model's, or was left half-way by a failed forward.
  virtual Result<StateKey> KeyOf(const Sequence& sequence) const = 0;
  // The arrays of a state, in order. kInvalidArgument for a key that no state can have.
  virtual Result<std::vector<StateSection>> Sections(const StateKey& key) const = 0;
  // Hands the arrays to `sink`, whose errors it passes on. `form` is the sequence's own key, or
  // the same with expanded_kv set: latent rows are then multiplied out for every head.
  virtual Status Save(const Sequence& sequence, const StateKey& form,
                      const StateSink& sink) const = 0;
  // A sequence made of the arrays that `source` gives, whose errors it passes on. It goes on with
  // the same bits as the one that was saved. Believes nothing: kCorrupt for values that no state
  // holds; errors of Sections and NewSequence. Takes memory for all arrays before it asks for
  // them: the caller makes sure that the source has them.
  virtual Result<std::unique_ptr<Sequence>> Restore(const StateKey& key,
                                                    const StateSource& source) const = 0;

 protected:
  ~StateKeeper() = default;
};

// The keeper of a model's states, as long-lived as the model. kUnsupported when it has none.
Result<const StateKeeper*> KeeperOf(const Model& model);

}  // namespace mk
