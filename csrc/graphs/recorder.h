// Recorder: watches the operators of one thread while a function runs, and makes a Record of them.
//
// It runs below autograd, where operators are as kernels see them, as a fallback of the dispatcher's key
// kRecordKey, for which torch registers nothing and which only recording enables.
//
// Note [What a replay must repeat]
//   - An operator that makes tensors: its results get places in the pool, and the best of three calls that
//     gives the same bits is kept: one of our kernels, an out variant, the operator itself with its results
//     copied. The first two are tried at once, into those places, and compared; but out variants of
//     structured operators are taken as they are, because one kernel computes both forms.
//   - An operator in place: as it is. What it overwrites that others can see is kept until the capture has
//     ended well, so that a failed one leaves inputs as they were.
//   - A view: nothing. Tensors of later calls are made with its sizes and strides.
//   - Bytes that appear without an operator (a number turned into a tensor, torch.tensor of a list):
//     constants. They are noticed when an operator reads memory of the pool that nothing recorded has
//     written. Code that is not an operator may have computed them (a C++ extension, what another compiler
//     made): they are listed as unexplained, as are tensors found elsewhere, and the caller compares two
//     captures (agrees_with).
//
// Kernels run outside the pool's route, so that only values of the record lie in the pool.
//
// Thread safety: a recorder belongs to the thread that made it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graphs/generators.h"
#include "graphs/op_facts.h"
#include "graphs/pool.h"
#include "graphs/record.h"
#include "graphs/record_key.h"
#include "graphs/routing.h"
#include "program/program_call.h"

namespace staticrt::graphs {

class Recorder final : public ProgramWatcher {
 public:
  // `inputs`: tensors whose addresses may change with each replay. `fixed`: further ones, which stay.
  // Recording goes on until the recorder is destroyed. Throws InputError if this thread records already or an
  // input is not a plain CPU tensor.
  Recorder(std::shared_ptr<CpuPool> pool, const std::vector<at::Tensor>& inputs,
           const std::vector<at::Tensor>& fixed, bool own_kernels);
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Of this thread, or null.
  static Recorder* current();
  // What no replay can repeat; empty if nothing. The first reason counts, and nothing is recorded after it.
  const std::string& failure() const { return failure_; }
  void fail(std::string reason);
  // Python code reads a tensor's bytes. Not for reads inside operators.
  static void note_read(const std::string& how);

  // Call before finish(): what shows only at the end may be a failure.
  void settle();
  // The record. REQUIRES: no failure. `made`: storages in the pool by their identity.
  std::unique_ptr<Record> finish(std::vector<std::pair<const void*, SlotId>>* made);
  // Puts back what in-place operators overwrote; after finish() too.
  void undo();

  void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // A compiled program: one step, whatever it runs.
  void watch(ProgramCall& call) override;

 private:
  enum class Contents : uint8_t {
    kMade,     // by steps so far, or an input's or external one's own
    kPending,  // by no step: constant as far as the record knows
  };
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    void* ptr = nullptr;
    SlotId slot = 0;
    SlotId constant = kNoShell;  // where its pending bytes are kept
    uint64_t made = 0;           // digest of the pending bytes as an operator left them
    Contents contents = Contents::kMade;
  };
  static constexpr SlotId kNoShell = ~SlotId{0};

  void change_metadata(const c10::OperatorHandle& op, const OpFacts& facts, c10::DispatchKeySet keys,
                       const std::vector<c10::IValue>& args, torch::jit::Stack* stack);
  bool refuse(const OpFacts& facts, const std::vector<c10::IValue>& args);
  Known& known(const at::Tensor& tensor);
  Known& learn(const c10::intrusive_ptr<c10::StorageImpl>& storage, Contents contents);
  SlotId shell_to_read(const at::Tensor& tensor);
  // `overwrites`: all elements are written and none is read.
  void about_to_write(const at::Tensor& tensor, bool overwrites);
  void fill(Known& known);
  SlotId keep_constant(Known& known);
  void wrote(const at::Tensor& tensor);
  void place(const at::Tensor& tensor);
  // Gives the tensor's storage a place in the pool, not yet filled. The bytes it had; null: there are none,
  // or they are in the pool already.
  at::DataPtr move_to_pool(const at::Tensor& tensor);

  // An operator that has run; its results have places in the pool.
  struct Call {
    const std::vector<c10::IValue>& args;
    std::vector<c10::IValue> on;  // the same on slots
    std::vector<at::Tensor> results;
    std::vector<at::DataPtr> bytes;  // of the results, as the operator made them; see move_to_pool()
    std::vector<ResultCopy> copies;
    c10::impl::LocalDispatchKeySet tls;
  };

  c10::IValue on_shells(const c10::IValue& value);
  std::vector<ResultCopy> new_results(const c10::IValue* results, size_t count,
                                      const std::vector<c10::IValue>& args, std::vector<at::Tensor>* fresh);
  // steps.cpp: the same results by a cheaper call, which fills their places. False: none gives the same bits.
  bool add_prepared(const c10::OperatorHandle& op, const OpFacts& facts, Call& call);
  std::unique_ptr<PointwiseCall> try_pointwise(const OpFacts& facts, const Call& call);
  bool add_out(const OpFacts& facts, Call& call);
  // Bytes of a new tensor that nothing has written: the same in each capture, and recognizable.
  void scribble_new(const at::Tensor& tensor);
  static bool fill_their_storages(const Call& call);
  static void scribble(const Call& call);
  static bool same_bits(const Call& call);
  static bool tried_out(const OpFacts& facts, const Call& call);

  const std::shared_ptr<CpuPool> pool_;
  const uint64_t first_serial_;
  const bool own_kernels_;
  std::unique_ptr<Record> record_;
  std::string failure_;
  std::unordered_map<c10::StorageImpl*, Known> known_;
  std::unordered_set<const c10::StorageImpl*> fixed_;
  struct Saved {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    void* ptr;
    at::DataPtr bytes;
    size_t nbytes;
  };
  std::vector<Saved> saved_;
  GeneratorWatch generators_;
  RouteScope route_;
};

}  // namespace staticrt::graphs
