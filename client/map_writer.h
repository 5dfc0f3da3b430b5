// Answers in the order of their items, however they come.

#pragma once

#include <cstdint>
#include <map>

#include "client/map_work.h"
#include "client/output.h"

namespace mk::client {

class MapWriter {
 public:
  // `by_place`: see MapFlow.
  MapWriter(bool by_place, Output& output) : by_place_(by_place), output_(output) {}

  // Every item must be put exactly once.
  void Put(uint64_t index, MapAnswer answer);
  // Gives the output what is next in order. `before_text` is called before anything is printed.
  template <typename Before>
  void Flush(const Before& before_text) {
    if (held_.empty() || held_.begin()->first != next_) return;
    before_text();
    WriteReady();
  }

  uint64_t next() const { return next_; }            // the item that is waited for
  size_t held_bytes() const { return held_bytes_; }  // of answers that wait for earlier ones

 private:
  void WriteReady();

  const bool by_place_;
  Output& output_;
  std::map<uint64_t, MapAnswer> held_;
  size_t held_bytes_ = 0;
  uint64_t next_ = 0;
  bool cut_off_ = false;  // a line is missing; what comes later would stand in its place
};

}  // namespace mk::client
