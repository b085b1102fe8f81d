// All that an operator's rule for meta tensors can see of a call: two calls of one key have equal results.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "simulated/call.h"
#include "simulated/thread_state.h"

namespace staticrt::simulated {

class InferenceKey {
 public:
  // nullopt where a rule may read more than a key holds, such as a host tensor of several elements.
  static std::optional<InferenceKey> of(const Call& call, const ThreadState& state);

  const std::vector<int64_t>& words() const { return words_; }
  bool operator==(const InferenceKey&) const = default;
  struct Hash {
    size_t operator()(const InferenceKey& key) const {
      return std::hash<std::string_view>()(
          {reinterpret_cast<const char*>(key.words_.data()), key.words_.size() * sizeof(int64_t)});
    }
  };

 private:
  bool add(const c10::IValue& value);
  bool add(const Call& call, const TensorArgument& argument);
  void add_bytes(const void* bytes, size_t size_bytes);
  void add_list(c10::IntArrayRef list);

  std::vector<int64_t> words_;
};

}  // namespace staticrt::simulated
