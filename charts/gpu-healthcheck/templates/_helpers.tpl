{{/* The image of every pod, also in the policy that restricts sweeps. */}}
{{- define "gpu-healthcheck.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The agent's image, slim if slim.enabled is set. */}}
{{- define "gpu-healthcheck.agentImage" -}}
{{- if not .Values.slim.enabled -}}
{{ include "gpu-healthcheck.image" . }}
{{- else -}}
{{- with .Values.image -}}
{{ .repository }}{{ if $.Values.slim.digest }}@{{ $.Values.slim.digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}-slim{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The agent's resources, with a lower memory limit without DCGM. */}}
{{- define "gpu-healthcheck.agentResources" -}}
{{- $resources := deepCopy (.Values.agent.resources | default dict) -}}
{{- if .Values.slim.enabled -}}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict "memory" .Values.slim.memory)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* Version of MutatingAdmissionPolicy: v1, or v1beta1 where the API server serves only that. */}}
{{- define "gpu-healthcheck.mutatingPolicies" -}}
{{- $beta := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
{{- $stable := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/{{ if and $beta (not $stable) }}v1beta1{{ else }}v1{{ end }}
{{- end -}}
