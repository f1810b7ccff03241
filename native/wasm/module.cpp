// The module for WebAssembly: what native/module.cpp is for Python.  js/src/native.js calls it.
#include <pthread.h>

#include "bind.hpp"
#include "errors.hpp"
#include "threads/pool.hpp"

namespace nb = nanobind;

static std::vector<char*> texts;  // that the present call reads

const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* length) {
  int n = 0;
  char* made = js_text(int(reinterpret_cast<intptr_t>(text)), &n);
  texts.push_back(made);
  *length = n;
  return made;
}

// Names are those of aleator.core.errors, or Python's own.
static void fail(std::string_view type, std::string_view message, double first = 0,
                 double second = 0) {
  js_fail(type.data(), int(type.size()), message.data(), int(message.size()), first, second);
}

static void explain(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const nb::python_error&) {  // waits in JavaScript
  } catch (const aleator::LogitsError& e) {
    fail("LogitsError", e.what());
  } catch (const aleator::StateError& e) {
    fail("StateError", e.what());
  } catch (const aleator::ParameterError& e) {
    fail("ParameterError", e.what());
  } catch (const aleator::ConstraintError& e) {
    fail("ConstraintError", e.what(), e.token);
  } catch (const aleator::GrammarError& e) {
    fail("GrammarError", e.what(), double(e.line), double(e.column));
  } catch (const nb::type_error& e) {
    fail("TypeError", e.what());
  } catch (const nb::cast_error& e) {
    fail("TypeError", e.what());
  } catch (const std::bad_alloc&) {
    fail("MemoryError",
         "WebAssembly's memory of at most 4 GiB is full: use a smaller model or context");
  } catch (const std::exception& e) {
    fail("ValueError", e.what());
  }
}

extern "C" {

[[gnu::used, clang::export_name("start")]] void aleator_start() {
  nb::module_ module;
  for (const auto& [name, bind] : aleator::bindings) bind(module);
}

// The number of what a function returns; -1: it has thrown.
[[gnu::used, clang::export_name("call")]] int aleator_call(int id, const int* given, int count) {
  int result = -1;
  try {
    nb::Function& function = *nb::functions()[size_t(id)];
    std::vector<int> all(given, given + count);
    const int wanted = function.before + int(function.arguments.size());
    if (count > wanted && !function.arguments.empty())
      throw nb::type_error(function.name + " takes " + std::to_string(wanted - function.before) +
                           " arguments");
    for (int i = count; i < wanted; i++) {
      const auto& argument = function.arguments[size_t(i - function.before)];
      if (!argument.has_value && !argument.may_be_none)
        throw nb::type_error(function.name + ": " + argument.name + " is missing");
      all.push_back(argument.value.number());
    }
    all.push_back(0);
    nb::object made = function.call(all.data(), int(all.size()) - 1);
    if (function.keeps) {
      const auto* kept = static_cast<const nb::Instance*>(js_instance(all[0]));
      auto* keeper = static_cast<nb::Instance*>(js_instance(made.number()));
      keeper->kept.push_back(kept->owner);
    }
    result = made.release();
  } catch (...) {
    explain(std::current_exception());
  }
  for (char* text : texts) free(text);
  texts.clear();
  return result;
}

[[gnu::used, clang::export_name("end")]] void aleator_end(nb::Instance* instance) {
  delete instance;
}

// Clang 14 has landing pads write to the first thread's __wasm_lpad_context, as if thread-local
// variables began at 0.  They do here, below all other data; other threads have no catch but (...).
void __wasm_init_tls(void* at);
[[gnu::used, clang::export_name("first_thread")]] void aleator_first_thread() {
  if (__builtin_wasm_tls_size() > 1024) __builtin_trap();
  __wasm_init_tls(nullptr);
}

// The end of a thread's stack, which grows down from there.
[[gnu::used, clang::export_name("stack_of")]] char* aleator_stack_of(pthread_t thread) {
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t size = 0;
  pthread_getattr_np(thread, &attributes);
  pthread_attr_getstack(&attributes, &stack, &size);
  return static_cast<char*>(stack) + size;
}

[[gnu::used, clang::export_name("thread_ends")]] void aleator_thread_ends() {
  aleator::Pool::thread_ends();
}

}  // extern "C"
