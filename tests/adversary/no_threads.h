// While it lives, the system refuses to start threads, as under a limit on tasks.
#ifndef KVSTOW_TESTS_ADVERSARY_NO_THREADS_H_
#define KVSTOW_TESTS_ADVERSARY_NO_THREADS_H_

#include <gtest/gtest.h>
#include <pthread.h>

namespace kvstow::testing {

// A limit on tasks does not bind root, so it asks for stacks that fit nowhere: pthread_create fails
// with the same EAGAIN.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge = before_;
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~NoThreads() { EXPECT_EQ(pthread_setattr_default_np(&before_), 0); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_ADVERSARY_NO_THREADS_H_
