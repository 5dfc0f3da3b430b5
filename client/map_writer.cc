#include "client/map_writer.h"

#include <cstdio>
#include <utility>

namespace mk::client {

void MapWriter::Put(uint64_t index, MapAnswer answer) {
  held_bytes_ += answer.text.size();
  held_.emplace(index, std::move(answer));
}

void MapWriter::WriteReady() {
  while (!held_.empty() && held_.begin()->first == next_) {
    const MapAnswer answer = std::move(held_.extract(held_.begin()).mapped());
    held_bytes_ -= answer.text.size();
    ++next_;
    cut_off_ = cut_off_ || (by_place_ && !answer.whole);
    if (cut_off_) continue;
    output_.Write(answer.text);
    if (!answer.notes.empty()) std::fputs(answer.notes.c_str(), stderr);
  }
}

}  // namespace mk::client
