"""Whom a client's certificate speaks for. That it is genuine has been verified by whoever hands it over.

As in PgBouncer, the names are the subject's common name and the DNS names among its alternative ones. Unlike there they
are compared octet by octet, as Postgres compares user names: no wildcard stands for other users, and upper case is not
lower case. Of several common names none counts, since others would take another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

__all__ = ["ClientCertificate"]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The users that a verified certificate may log in as."""

    names: frozenset[str]

    @classmethod
    def of(cls, certificate: x509.Certificate) -> ClientCertificate:
        """Extensions that cannot be read give no names."""
        common = [str(name.value) for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        return cls(frozenset(common if len(common) == 1 else ()) | _dns_names(certificate))


def _dns_names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return frozenset()
    return frozenset(extension.value.get_values_for_type(x509.DNSName))
