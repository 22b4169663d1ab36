"""Reads what kiln signs with the tools of others: sigstore, in-toto-attestation, securesystemslib.

usage: attest.py PUBLIC-KEY ENVELOPE FILE...

Every FILE must be a subject of the statement. Prints one line for each thing that was shown.
"""

import hashlib
import json
import sys

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement as InTotoStatement
from securesystemslib import dsse
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey
from sigstore import dsse as sigstore_dsse
from sigstore.hashes import Hashed
from sigstore_models.common.v1 import HashAlgorithm

public, envelope_file, files = sys.argv[1], sys.argv[2], sys.argv[3:]
text = open(envelope_file, "rb").read()
pem = open(public, "rb").read()

# securesystemslib, the library below in-toto and TUF, checks the signature.
envelope = dsse.Envelope.from_dict(json.loads(text))
keyid = json.loads(text)["signatures"][0]["keyid"]
key = SSlibKey.from_crypto(load_pem_public_key(pem), keyid=keyid)
envelope.verify([key], 1)
changed = dsse.Envelope.from_dict(json.loads(text))
changed.payload = changed.payload.replace(b"sha256", b"sha512", 1)
try:
    changed.verify([key], 1)
except VerificationError:
    print("securesystemslib: signature good, and bad for another payload")
else:
    sys.exit("securesystemslib accepts a changed payload")

# sigstore reads the envelope and the statement, signs over the same bytes, and finds every file.
sig = sigstore_dsse.Envelope._from_json(text)
load_pem_public_key(pem).verify(sig.signature, sig.pae())
statement = sigstore_dsse.Statement(envelope.payload)
for name in files:
    digest = hashlib.sha256(open(name, "rb").read()).digest()
    if not statement._matches_digest(Hashed(algorithm=HashAlgorithm.SHA2_256, digest=digest)):
        sys.exit(f"sigstore: {name} is no subject of the statement")
print(f"sigstore: {len(files)} files are subjects of a signed statement")

# in-toto-attestation has the schemas, and refuses fields that they do not have.
parsed = json_format.Parse(envelope.payload, statement_pb2.Statement())
InTotoStatement.copy_from_pb(parsed).validate()
print("in-toto-attestation: valid statement", parsed.predicate_type)
if parsed.predicate_type == "https://slsa.dev/provenance/v1":
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2

    predicate = json.dumps(json.loads(envelope.payload)["predicate"])
    provenance = json_format.Parse(predicate, provenance_pb2.Provenance())
    print("in-toto-attestation: valid provenance by", provenance.run_details.builder.id)
