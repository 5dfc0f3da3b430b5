// What many requests over one connection are made of: items from the records of an input, and their
// answers in the order of the items.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/access.h"
#include "client/json_format.h"
#include "client/record_reader.h"
#include "protocol/messages.h"

namespace mk::client {

struct MapItem {
  uint64_t index = 0;      // 0 for the first
  std::optional<Json> id;  // what the item calls itself; repeated in its answer
  protocol::Args args;
  bool own_model = false;                // it names a model itself
  std::optional<protocol::Error> error;  // why it cannot be run
};

// An answer as it is written.
struct MapAnswer {
  std::string text;
  std::string notes;      // for stderr
  bool whole = true;      // false: cancelled; no line of text stands for it
  bool degraded = false;  // finished, but not the whole model's
  uint64_t tokens = 0;    // that no message on the way has counted
};

struct MapFlow {
  AccessOptions access;
  uint64_t jobs = 0;  // requests at once; 0: as many as the daemon decodes in one step
  bool fail_fast = false;
  bool stats = false;
  uint32_t window = protocol::kDefaultWindow;  // of every request
  bool alone = false;                          // there is one item: its error is the command's
  // The answers of items are known by their places alone: after one that is missing come no others.
  bool by_place = true;
};

class MapWork {
 public:
  virtual ~MapWork() = default;
  MapWork(const MapWork&) = delete;
  MapWork& operator=(const MapWork&) = delete;

  // Whether a record holds no item: a blank line among JSON objects.
  virtual bool IsBlank(const Record& record) const = 0;
  // Everything that the daemon would refuse is found here: the item's `error`.
  virtual MapItem Read(uint64_t index, Record record) = 0;
  // A message on the way to the answer. Returns the tokens that it tells of.
  virtual uint64_t Take(const MapItem& item, const protocol::Body& body) = 0;
  // The item will be asked for anew: what Take() was given for it is void.
  virtual void Forget(const MapItem& /*item*/) {}
  // The answer to an item: `outcome` is the `done` of its op or an Error.
  virtual MapAnswer Render(const MapItem& item, const protocol::Body& outcome) = 0;
  // What comes after the last answer.
  virtual std::string Totals() { return {}; }

 protected:
  MapWork() = default;
};

// An answer that says that its request was cancelled.
bool IsCancelled(const protocol::Body& outcome);

}  // namespace mk::client
