// A copy of a model file that a test may damage; removed at the end.

#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace mk::test {

class ScratchModel {
 public:
  explicit ScratchModel(const std::string& source);
  ~ScratchModel();
  ScratchModel(const ScratchModel&) = delete;
  ScratchModel& operator=(const ScratchModel&) = delete;

  const std::string& path() const { return path_; }
  // Overwrites bytes of a tensor's blob from byte `first` on.
  void Patch(const std::string& tensor, uint64_t first, std::span<const uint8_t> bytes) const;
  void PatchFloat(const std::string& tensor, uint64_t element, float value) const;

 private:
  std::string path_;
};

}  // namespace mk::test
