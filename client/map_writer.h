// The answers of `mk map`, in the order of the items.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "client/map_item.h"
#include "client/map_settings.h"
#include "client/output.h"

namespace mk::client {

// What became of an item: an answer (perhaps a cancelled one), or an error.
using MapOutcome = std::variant<protocol::RunDone, protocol::Error>;

class MapWriter {
 public:
  MapWriter(MapForm form, Output& output) : form_(form), output_(output) {}

  // Every item must be put exactly once.
  void Put(const MapItem& item, const MapOutcome& outcome);
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
  struct Answer {
    std::string text;
    std::string notes;  // for stderr
    bool whole = true;  // false: cancelled; no line of text stands for it
  };

  Answer Render(const MapItem& item, const protocol::RunDone& done) const;
  Answer Render(const MapItem& item, const protocol::Error& error) const;
  void WriteReady();

  const MapForm form_;
  Output& output_;
  std::map<uint64_t, Answer> held_;
  size_t held_bytes_ = 0;
  uint64_t next_ = 0;
  bool cut_off_ = false;  // a line is missing; what comes later would stand in its place
};

// As one line: newline, carriage return and backslash as \n, \r and \\ (printf '%b' undoes it).
std::string EscapeLine(std::string_view text);

bool IsCancelled(const MapOutcome& outcome);

}  // namespace mk::client
