# What `cmake --install` copies, what find_package(kvstow) finds there, and what `cpack` packs.
#
#   cmake --install build --prefix PREFIX     programs, unit, documents, the C++ client
#   (cd build && cpack)                       kvstow_VERSION_amd64.deb and libkvstow-dev_VERSION_amd64.deb
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Programs and what runs them.
install(TARGETS kvstow kvstowd COMPONENT runtime)
install(FILES deploy/kvstowd.service DESTINATION lib/systemd/system COMPONENT runtime)
install(FILES deploy/kvstowd.conf DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/kvstow COMPONENT runtime)
install(DIRECTORY deploy/grafana deploy/prometheus deploy/kubernetes DESTINATION ${CMAKE_INSTALL_DATADIR}/kvstow COMPONENT runtime)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime FILES_MATCHING PATTERN "*.md")

# The C++ client: what its headers include, no more. Included as "client/client.h".
set(KVSTOW_PUBLIC_HEADERS
    base/bytes.h
    base/mutex.h
    base/shared_bytes.h
    client/client.h
    client/client_options.h
    client/key_chain.h
    client/layer_put.h
    client/page_buffer.h
    client/page_columns.h
    client/pages.h
    client/spaces.h
    kernels/calibration/calibration.h
    kernels/calibration/calibration_moments.h
    kernels/calibration/token_importance.h
    kernels/codec/calibration_store.h
    kernels/device/device.h
    kernels/device/device_sharing.h
    kernels/entropy/plane_tables.h
    kernels/importance/importance.h
    kernels/page/attention.h
    kernels/page/page.h
    kernels/recipe/op_arguments.h
    kernels/recipe/recipe.h
    kernels/transform/dense_product.h)
foreach(header ${KVSTOW_PUBLIC_HEADERS})
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${KVSTOW_INSTALLED_HEADERS}/${folder} COMPONENT development)
endforeach()
install(DIRECTORY proto/kvstow DESTINATION ${CMAKE_INSTALL_DATADIR}/kvstow/proto COMPONENT development
        FILES_MATCHING PATTERN "*.proto")

set(KVSTOW_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/kvstow)
foreach(library base kernels proto wire client)
  set_target_properties(kvstow_${library} PROPERTIES EXPORT_NAME ${library})
  install(TARGETS kvstow_${library} EXPORT kvstow COMPONENT development)
endforeach()
install(EXPORT kvstow NAMESPACE kvstow:: FILE kvstow-targets.cmake DESTINATION ${KVSTOW_CMAKE_FOLDER}
        COMPONENT development)
configure_package_config_file(cmake/kvstow-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kvstow-config.cmake
                              INSTALL_DESTINATION ${KVSTOW_CMAKE_FOLDER})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvstow-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvstow-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvstow-config-version.cmake
        DESTINATION ${KVSTOW_CMAKE_FOLDER} COMPONENT development)

# Debian packages.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvstow)
set(CPACK_PACKAGE_VENDOR kvstow)
set(CPACK_PACKAGE_CONTACT "kvstow maintainers <maintainers@kvstow.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV cache of language models, over GPU, RAM and disk")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME kvstow)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkvstow-dev)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)  # needs dpkg-shlibdeps
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA
    "${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/postrm;${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/conffiles")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libgrpc++-dev, libprotobuf-dev, libabsl-dev, libspdlog-dev, libssl-dev, libxxhash-dev, libhwy-dev, zlib1g-dev, pkg-config")
if(KVSTOW_HAS_IPSEC_MB)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libipsec-mb-dev")
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/KvstowPack.cmake)
include(CPack)
